"""What an operator asks of the trainer: pause, resume, status, promote, roll back.

Read `policy` first (the decisions), then `policy_on_log`; `publishing` writes, `report` reads.
"""
