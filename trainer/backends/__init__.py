"""What turns a batch into new weights: `protocol` is the seam, `wire` and `wire_batch` the same over HTTP.

memory                                     the shipped fake: weights are a hash of what was trained
art_client                                 an art-server elsewhere
guards → art_local → art_session           ART in this process, on a loop of its own (`art_thread`): jobs and journal;
                                           one update, packed by `art_packing`. `outcomes` says how a batch ended
model_settings, art_engine                 what the model is made with, and the same in ART's terms
art_server                                 art_local as a process of its own
art_old_bodies → art_old_routes            for released ART clients: their calls, checked, then followed
art_released_rows → art_released_client    a released ART server elsewhere
"""
