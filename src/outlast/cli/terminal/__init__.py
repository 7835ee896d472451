"""What commands share: how they read, write and ask on a terminal."""
