"""How does vector code reach the processor? The kernel decorator and its cache; primitives and emulations."""
