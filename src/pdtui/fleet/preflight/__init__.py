"""Live checks over all nodes before something is started: gather first, judge after.

Probes ask the nodes and yield readings (`probes`, `facts`), checks are pure functions over them (`check`,
`checks`), the runner brings both together (`runner`), and `report` says what came out.
"""
