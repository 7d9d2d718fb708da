"""The layout and the lock of a ledger's file."""
