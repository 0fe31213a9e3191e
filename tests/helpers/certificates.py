"""Certificates for tests, with their own authority."""

import trustme


class Certificates:
    """Paths of PEM files: `ca`, and a `certificate` and `key` each of `server` and `client`."""

    def __init__(self, folder, host="127.0.0.1"):
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        for name, identity in (("server", host), ("client", "actor@example.org")):
            leaf = authority.issue_cert(identity)
            setattr(self, name, {"certificate": folder / f"{name}.pem", "key": folder / f"{name}.key"})
            leaf.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
            leaf.private_key_pem.write_to_path(folder / f"{name}.key")
