"""The target model's own pieces: weights folder, head, figures a token (log-probabilities, entropy)."""
