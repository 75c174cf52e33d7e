"""What turns a batch into new weights: `protocol` is the seam, `wire` and `wire_batch` the same over HTTP.

memory                                     the shipped fake: weights are a hash of what was trained
art_client                                 an art-server elsewhere
guards → art_packing → art_local           ART in this process, with a journal; `outcomes` says how a batch ended
model_settings, art_engine                 what the model is made with, and the same in ART's terms
art_server, art_old_routes                 art_local as a process of its own
art_released_rows → art_released_client    a released ART server elsewhere
"""
