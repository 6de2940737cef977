"""Authorities and certificates for tests, made by the openssl command."""

import subprocess


def openssl(folder, *arguments):
    subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True)


def make_authority(folder, name="authority"):
    openssl(
        folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
    )  # fmt: skip
    return folder / f"{name}.pem"


def make_certificate(folder, name, names="IP:127.0.0.1", authority="authority", days=1):
    """A certificate for addresses, such as `DNS:a,IP:10.0.0.1`; of -1 days it has expired."""
    openssl(
        folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}",
    )  # fmt: skip
    (folder / f"{name}.ext").write_text(f"subjectAltName={names}\n")
    openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
        "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", days,
        "-extfile", f"{name}.ext",
    )  # fmt: skip
    return folder / f"{name}.pem", folder / f"{name}.key"
