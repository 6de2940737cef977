"""What goes online: the split graph, the exported embeddings, and the proof that both are right."""
