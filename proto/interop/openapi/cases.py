"""Runs Schemathesis against an engine. `cases.sh` beside this file installs what it needs.

    python3 proto/interop/openapi/cases.py PROGRAM [CASES [OPTION...]]

CASES is the number of random cases. About 12,000 systematic ones, with each bound and each type, come before them.
The engine is that of the contract's examples, with the description that it serves itself.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import check

HERE = pathlib.Path(__file__).resolve().parent
CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    # Of `hooks.py`, instead of `positive_data_acceptance`: a schema cannot say which contexts, cursors and tokens exist.
    "decoder_agrees",
]
# Rejected requests slow their client down, and a busy machine rejects for load. Both are tested elsewhere.
ENGINE = {"SEALWIRE_LIMITS_REJECTED_PER_S_MAX": "1000000", "SEALWIRE_SCHEDULE_WAIT_MAX_MS": "3600000"}
# Generated deadlines of 1 ms pass, also before the payload is read: status 504. Invalid data can be beyond a limit: status 413.
CONFIGURATION = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 504]

[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 409, 413, 415, 422, 429, 504]
"""


def main():
    program = os.path.abspath(sys.argv[1])
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    os.environ.update(ENGINE)
    with check.serving(program) as (folder, port), tempfile.TemporaryDirectory() as work:
        base = f"https://localhost:{port}"
        operations = len(check.json.loads(check.FILE.read_bytes())["paths"])
        configuration = pathlib.Path(work) / "schemathesis.toml"
        configuration.write_text(CONFIGURATION)
        command = [
            pathlib.Path(sys.executable).parent / "schemathesis", "--config-file", configuration, "run", f"{base}/openapi.json",
            "--tls-verify", f"{folder}/ca.pem", "--request-cert", f"{folder}/client.pem", "--request-cert-key", f"{folder}/client-key.pem",
            "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--max-examples", str(-(-cases // operations)),
            "--continue-on-failure", "--generation-database", "none", "--generation-with-security-parameters", "false", "--suppress-health-check", "all", "--warnings", "off",
            *sys.argv[3:],
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}
        sys.exit(subprocess.run(command, env=environment, cwd=work).returncode)


if __name__ == "__main__":
    main()
