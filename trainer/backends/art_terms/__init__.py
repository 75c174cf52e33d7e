"""A batch and its settings in, the same in ART's terms out: for ART's own engine and for W&B's serverless training.

`update` has the settings, and names those that ART's update does not have; `groups` has the batch, and imports ART.
"""
