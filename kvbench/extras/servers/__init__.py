"""Cells that a server answers, or answers made elsewhere: asked, checked and recorded like our own, without torch."""
