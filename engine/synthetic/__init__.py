"""Where do rows come from when no disk holds them? SIFT-like vectors computed from row numbers."""
