"""An admitted batch in, new weights out, by ART's own model service: Unsloth trains on a GPU, a vLLM of ART's serves.

It imports ART with torch, 219 MB, and only where `art_server: {art: …}` asks for it. Read `service` first (what the
session calls), then `packing` (ART's LocalBackend, given our advantages) and `engine` (our settings in ART's terms).
"""
