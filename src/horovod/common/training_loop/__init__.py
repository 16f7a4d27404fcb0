"""Rules of training loops that all frontends share: steps, gradients and their weights, uneven data, evaluation."""
