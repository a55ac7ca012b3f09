"""sparse_mla_q8kv8_prefill_fwd: attention of each query to its own rows of an FP8 latent cache."""
