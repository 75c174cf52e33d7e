"""rollbus.schemas"""
