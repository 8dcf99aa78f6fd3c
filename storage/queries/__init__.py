"""What does a search need from disk beside the tree?"""
