"""Other systems, behind one interface."""
