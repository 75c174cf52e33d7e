"""Nouns of what learns: trainer, versions of the policy, base models, ART, finetuning configurations.

Settings, batches and checkpoints go in; steps and versions, shown to people, come out. Read first: `trainer`.
"""
