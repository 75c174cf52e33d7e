"""What turns a batch into new weights: `protocol` is the seam, `wire` its JSON over HTTP.

memory                                     the shipped fake: weights are a hash of what was trained
art_client                                 an art-server elsewhere
guards → art_packing → art_local           ART in this process, with a journal
art_server, art_old_routes                 art_local as a process of its own
"""
