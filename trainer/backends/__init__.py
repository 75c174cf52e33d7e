"""What turns a batch into new weights: `protocol` (the seam), `wire` (its JSON), one module per backend."""
