"""Which instance comes when, and on which rank: the rules of docs/order.md, as pure functions of what is known."""
