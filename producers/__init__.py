"""rollbus.producers"""
