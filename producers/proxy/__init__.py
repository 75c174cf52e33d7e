"""An OpenAI-compatible proxy that records what passes, for programs that cannot be changed.

program ─▶ proxy ─▶ model server        app (routes), episodes (whose request it is), relay (one call)
             └──▶ Kafka
"""
