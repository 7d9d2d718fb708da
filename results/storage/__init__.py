"""How a ledger lies on disk: its layout and its lock."""
