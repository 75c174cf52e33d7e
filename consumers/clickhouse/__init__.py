"""Every topic into typed ClickHouse tables, and saved questions over them.

rows        a record becomes rows of tables; pure
sink        topics in, inserted blocks out, offsets committed afterwards
store       ClickHouse itself: client, columns, migrations
questions   saved questions, and how answers look
maintain    rebuild, forget, namespaces
"""
