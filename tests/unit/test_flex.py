"""FlexAttention's terms, uncompiled on a CPU, against the reference."""
