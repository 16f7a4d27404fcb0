"""Training loop logic shared by all frontends: steps, gradients, weights, uneven data and evaluation."""
