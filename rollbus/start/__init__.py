"""`rollbus start`: a new project's settings, machine and traffic come in; what is missing and what to set comes out.

parts          what a project needs → which of it is there, and which is missing
served_model   no model named → SmolLM2, fetched
processes      the missing parts → running processes, which `rollbus down` ends
proposals      the funnel's notices → changes of the settings file
settings_text  one change → the file's text, with its comments

Every rule about traffic is the funnel's (`rollbus.health.funnel`); this room only asks and writes.
"""
