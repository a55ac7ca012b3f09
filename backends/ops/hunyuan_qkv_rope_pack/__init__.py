"""hunyuan_qkv_rope_pack: rotate image q and k, pack image and text q, k, v for attention."""
