"""rollbus.trainer"""
