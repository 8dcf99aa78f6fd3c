"""How does vector code reach the processor? The kernel decorator, its cache, LLVM vector code."""
