"""What several stages share: layout transforms, copies, epilogues, the tile heuristic."""
