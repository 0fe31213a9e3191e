"""For The Win (FTW; Jaderberg et al. 2019) in JAX: a hierarchical recurrent agent, trained by populations."""
