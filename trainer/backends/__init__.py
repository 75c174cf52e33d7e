"""What turns a batch into new weights: `protocol` (the seam), `wire` (its JSON), and one module per backend."""
