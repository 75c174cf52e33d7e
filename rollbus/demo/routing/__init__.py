"""The demo's job: support tickets come in, the name of the team that answers each goes out.

tickets     a grammar of tickets; the evaluation's sentences are not in traffic
prompt      a ticket to the model's messages, an answer to a team
orders      the second task: tickets that name an order, which the agent looks up by a tool first
tasks       both tasks, as the desk and the evaluation take them
desk        the agent behind a web service, which also keeps where each ticket ended
customers   traffic, and verdicts that come later, noisy and not always
evaluation  a version and unseen tickets to how many it names rightly
references  what simpler learners make of the same verdicts
job         all of it as the demo runs it
"""

__all__: list[str] = []
