"""rollbus.consumers"""
