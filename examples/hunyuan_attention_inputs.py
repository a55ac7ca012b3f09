"""Joint attention over a video's patches and its prompt, as a HunyuanVideo block does it.

    python examples/hunyuan_attention_inputs.py

One projection makes q, k and v of the image tokens, another those of the text. The op rotates the
image's q and k by each patch's place in time, height and width, and lays image and text one after
the other in memory: what attention wants, in one pass over the data. Runs with or without a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import backends
from contracts import ContractError

FRAMES, HEIGHT, WIDTH = 3, 6, 8
TEXT_TOKENS, HIDDEN, HEADS = 16, 256, 2
AXIS_DIMS = (16, 56, 56)
"""How many of a head's 128 dimensions tell the frame, the row and the column of a patch."""


def rotary_tables(device: str) -> tuple[Tensor, Tensor]:
    """cos and sin `[FRAMES * HEIGHT * WIDTH, 64]`, float32: one angle for each patch and pair."""
    extents = (FRAMES, HEIGHT, WIDTH)
    places = torch.meshgrid(*(torch.arange(n, device=device) for n in extents), indexing="ij")
    angles = []
    for place, dims in zip(places, AXIS_DIMS, strict=True):
        pair = torch.arange(0, dims, 2, device=device)
        frequency = 256.0 ** (-pair / dims)
        angles.append(torch.outer(place.flatten().float(), frequency))
    angle = torch.cat(angles, dim=-1)
    return angle.cos(), angle.sin()


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    head_dim, patches = sum(AXIS_DIMS), FRAMES * HEIGHT * WIDTH
    projection = {"device": device, "dtype": torch.bfloat16, "bias": False}
    image_qkv = nn.Linear(HIDDEN, 3 * HEADS * head_dim, **projection)
    text_qkv = nn.Linear(HIDDEN, 3 * HEADS * head_dim, **projection)
    image = torch.randn(1, patches, HIDDEN, device=device, dtype=torch.bfloat16)
    text = torch.randn(1, TEXT_TOKENS, HIDDEN, device=device, dtype=torch.bfloat16)
    cos, sin = rotary_tables(device)

    with torch.no_grad():
        # Views of each projection: the op reads them where they are.
        img_q, img_k, img_v = image_qkv(image).unflatten(-1, (3, HEADS, head_dim)).unbind(2)
        txt_q, txt_k, txt_v = text_qkv(text).unflatten(-1, (3, HEADS, head_dim)).unbind(2)
        arguments = (img_q, img_k, img_v, txt_q, txt_k, txt_v, cos, sin)

        print(f"On {device}, {patches} patches and {TEXT_TOKENS} tokens of text:")
        print(backends.hunyuan_qkv_rope_pack.explain(*arguments))

        q, k, v = backends.hunyuan_qkv_rope_pack(*arguments)
        print(f"\nimg_q {tuple(img_q.shape)}, strides {img_q.stride()}: a view of the projection")
        print(f"q     {tuple(q.shape)}, strides {q.stride()}: packed, image first")

        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        attended = scaled_dot_product_attention(*heads_first).transpose(1, 2).flatten(2)
        print(f"attention gives {tuple(attended.shape)}: every patch has seen every word")

        # The angle between two patches depends on how far apart they are, not on where they are.
        same = torch.ones(1, patches, HEADS, head_dim, device=device, dtype=torch.bfloat16)
        unrotated_text = (txt_q, txt_k, txt_v)
        turned, _, _ = backends.hunyuan_qkv_rope_pack(same, same, same, *unrotated_text, cos, sin)
        score = (turned[0, :patches, 0].float() @ turned[0, :patches, 0].float().T) / head_dim
        print("\nLikeness of equal patches, by how many columns to the right:")
        for row in (0, 3 * WIDTH):
            across = "  ".join(f"{score[row, row + step]:.3f}" for step in range(WIDTH))
            print(f"  from the start of row {row // WIDTH}: {across}")

        print("\nTables made for one frame fewer would be read past their end; instead:")
        fewer = (FRAMES - 1) * HEIGHT * WIDTH
        try:
            backends.hunyuan_qkv_rope_pack(*arguments[:6], cos[:fewer], sin[:fewer])
        except ContractError as error:
            print(error)


if __name__ == "__main__":
    main()
