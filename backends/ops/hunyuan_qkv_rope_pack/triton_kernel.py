"""Device code: rotate and pack the image tokens, copy the text tokens, in one launch.

A program owns a tile of `BLOCK_TOKENS` tokens of one stream (image or text, never both) by
`BLOCK_HEADS` whole heads, and handles q, k and v of it. The heads lie side by side in `LANES`, a
power of two, so that a head_dim of 80, 96 or 112 leaves few lanes idle, and every access covers
whole rows in order, 16 bytes a thread. Pairs are split in registers: to load their even and odd
elements apart would touch each sector twice, two bytes a thread.

Strides are int64, and so is every address: they may be of any size.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    tile_ptr,
    stride_token,
    stride_head,
    mask,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Load `[BLOCK_TOKENS, LANES]` elements: tokens down, heads side by side across."""
    token = tl.arange(0, BLOCK_TOKENS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    offsets = token * stride_token + (lane // HEAD_DIM) * stride_head + lane % HEAD_DIM
    return tl.load(tile_ptr + offsets, mask=mask)


@triton.jit
def load_angles(
    tile_ptr,
    stride_token,
    mask,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Load each token's row of a float32 table, once a head: `[BLOCK_TOKENS, LANES / 2]`."""
    token = tl.arange(0, BLOCK_TOKENS)[:, None]
    pair = tl.arange(0, LANES // 2)[None, :] % (HEAD_DIM // 2)
    return tl.load(tile_ptr + (token * stride_token + pair), mask=mask)


@triton.jit
def rotate(
    x,
    cos,
    sin,
    BLOCK_TOKENS: tl.constexpr,
    LANES: tl.constexpr,
    ROUND_IN_INTEGERS: tl.constexpr,
):
    """Rotate each pair of neighbouring lanes by its angle, in float32, rounded once."""
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (BLOCK_TOKENS, LANES // 2, 2)))
    pairs = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return to_bfloat16(tl.reshape(pairs, (BLOCK_TOKENS, LANES)), ROUND_IN_INTEGERS)


@triton.jit
def to_bfloat16(x, ROUND_IN_INTEGERS: tl.constexpr):
    """Round float32 to the nearest bfloat16, ties to even.

    A GPU has an instruction for it. Triton's interpreter truncates, so for it the bits are rounded
    (and NaN made quiet instead, as the addition could carry a NaN into an infinity or a zero).
    """
    if ROUND_IN_INTEGERS:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = bits + 0x7FFF + ((bits >> 16) & 1)
        nearest = tl.where(x == x, nearest, bits | 0x400000)
        rounded = (nearest >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        rounded = x.to(tl.bfloat16)
    return rounded


@triton.jit
def pack_kernel(
    img_q_ptr,
    stride_iqb,
    stride_iqs,
    stride_iqh,
    img_k_ptr,
    stride_ikb,
    stride_iks,
    stride_ikh,
    img_v_ptr,
    stride_ivb,
    stride_ivs,
    stride_ivh,
    txt_q_ptr,
    stride_tqb,
    stride_tqs,
    stride_tqh,
    txt_k_ptr,
    stride_tkb,
    stride_tks,
    stride_tkh,
    txt_v_ptr,
    stride_tvb,
    stride_tvs,
    stride_tvh,
    cos_ptr,
    stride_cs,
    sin_ptr,
    stride_ss,
    packed_ptr,
    batch_size,
    img_len,
    txt_len,
    num_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    LANES: tl.constexpr,
    ROUND_IN_INTEGERS: tl.constexpr,
):
    """Fill `packed[3, B, S + T, H, D]`, on a one-axis grid: the other axes end at 65,535.

    Strides are in elements. How wide an access may be follows from what the compiler is told of the
    divisibility of pointers and strides, and from `HEAD_DIM`.
    """
    head_tiles = tl.cdiv(num_heads, BLOCK_HEADS)
    img_tiles = tl.cdiv(img_len, BLOCK_TOKENS)
    token_tiles = img_tiles + tl.cdiv(txt_len, BLOCK_TOKENS)
    tile = tl.program_id(0) // head_tiles
    token_tile = tile % token_tiles
    b = (tile // token_tiles).to(tl.int64)
    h = (tl.program_id(0) % head_tiles).to(tl.int64) * BLOCK_HEADS

    token = tl.arange(0, BLOCK_TOKENS)[:, None]
    lane = tl.arange(0, LANES)[None, :]
    live_lanes = tl.minimum(num_heads - h, BLOCK_HEADS).to(tl.int32) * HEAD_DIM
    row = b * (img_len + txt_len)

    if token_tile < img_tiles:
        s = token_tile.to(tl.int64) * BLOCK_TOKENS
        row += s
        live_token = token < img_len - s
        mask = live_token & (lane < live_lanes)
        q_ptr = img_q_ptr + b * stride_iqb + s * stride_iqs + h * stride_iqh
        k_ptr = img_k_ptr + b * stride_ikb + s * stride_iks + h * stride_ikh
        v_ptr = img_v_ptr + b * stride_ivb + s * stride_ivs + h * stride_ivh
        q = load_tile(q_ptr, stride_iqs, stride_iqh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)
        k = load_tile(k_ptr, stride_iks, stride_ikh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)
        v = load_tile(v_ptr, stride_ivs, stride_ivh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)

        live_pair = live_token & (tl.arange(0, LANES // 2)[None, :] < live_lanes // 2)
        c_ptr = cos_ptr + s * stride_cs
        s_ptr = sin_ptr + s * stride_ss
        cos = load_angles(c_ptr, stride_cs, live_pair, HEAD_DIM, BLOCK_TOKENS, LANES)
        sin = load_angles(s_ptr, stride_ss, live_pair, HEAD_DIM, BLOCK_TOKENS, LANES)
        q = rotate(q, cos, sin, BLOCK_TOKENS, LANES, ROUND_IN_INTEGERS)
        k = rotate(k, cos, sin, BLOCK_TOKENS, LANES, ROUND_IN_INTEGERS)
    else:
        s = (token_tile - img_tiles).to(tl.int64) * BLOCK_TOKENS
        row += img_len + s
        mask = (token < txt_len - s) & (lane < live_lanes)
        q_ptr = txt_q_ptr + b * stride_tqb + s * stride_tqs + h * stride_tqh
        k_ptr = txt_k_ptr + b * stride_tkb + s * stride_tks + h * stride_tkh
        v_ptr = txt_v_ptr + b * stride_tvb + s * stride_tvs + h * stride_tvh
        q = load_tile(q_ptr, stride_tqs, stride_tqh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)
        k = load_tile(k_ptr, stride_tks, stride_tkh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)
        v = load_tile(v_ptr, stride_tvs, stride_tvh, mask, HEAD_DIM, BLOCK_TOKENS, LANES)

    tile_ptr = packed_ptr + (row * num_heads + h) * HEAD_DIM
    tile_ptrs = tile_ptr + (token * (num_heads * HEAD_DIM) + lane)
    plane = tl.cast(batch_size, tl.int64) * (img_len + txt_len) * num_heads * HEAD_DIM
    tl.store(tile_ptrs, q, mask=mask)
    tl.store(tile_ptrs + plane, k, mask=mask)
    tl.store(tile_ptrs + 2 * plane, v, mask=mask)
