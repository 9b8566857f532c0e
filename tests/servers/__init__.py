"""Real servers that tests start: an S3 server, a Google Cloud Storage server, and a proxy that breaks what they send.

The servers are Go modules (go/go.mod pins them), built once per machine into the user's cache (build.py). They listen on
the loopback alone, at ports of their own, and end with the tests, however those end. PyTorch, which is no server, is
brought into the same cache (pytorch.py).
"""
