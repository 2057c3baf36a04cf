"""Which instance comes when, and on which rank: docs/order.md's rules, as pure functions."""
