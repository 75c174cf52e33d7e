"""rollbus.streams"""
