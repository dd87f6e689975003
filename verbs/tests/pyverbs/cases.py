"""Runs cases of pyverbs' test-suite and writes one line for each to a file.

usage: cases.py SUITE RESULTS SEED LIMIT MODULE [CASE...]

SUITE is the folder that contains the suite's folder "tests". The cases that are named after MODULE are not
run. A case that takes more than LIMIT seconds ends the process by SIGALRM. A line of RESULTS is: case, tab,
outcome (begun, pass, skip, fail), tab, reason.
"""
import ipaddress
import os
import random
import signal
import sys
import unittest

DEVICE, GID_INDEX = 'urnic0', 0


class Result(unittest.TestResult):
    def __init__(self, out, seed, limit):
        super().__init__()
        self.out, self.seed, self.limit = out, seed, limit

    def tell(self, test, outcome, reason=''):
        reason = ' '.join(''.join(c if c.isprintable() else ' ' for c in str(reason)).split())
        # Written at once: cases fork, and what is still buffered would be written by the children too.
        os.write(self.out, f'{test.id()}\t{outcome}\t{reason[:160]}\n'.encode())

    def startTest(self, test):
        super().startTest(test)
        # Many cases choose sizes and attributes at random: the choice is a function of the seed and of the case.
        random.seed(f'{self.seed} {test.id()}')
        self.tell(test, 'begun')
        signal.alarm(self.limit)

    def stopTest(self, test):
        super().stopTest(test)
        signal.alarm(0)

    def addSuccess(self, test):
        self.tell(test, 'pass')

    def addSkip(self, test, reason):
        self.tell(test, 'skip', reason)

    def addFailure(self, test, error):
        self.tell(test, 'fail', f'{error[0].__name__}: {error[1]}')
        print(self._exc_info_to_string(error, test), file=sys.stderr, flush=True)

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addFailure(test, error)


def main():
    suite, results, seed, limit, module, *without = sys.argv[1:]
    signal.alarm(int(limit))
    sys.path[:0] = [suite, os.path.join(suite, 'tests')]
    sys.argv[1:] = ['--dev', DEVICE, '--gid', str(GID_INDEX)]
    from args_parser import parser
    parser.parse_args()
    import tests.base
    from pyverbs.device import Context

    def address_and_mac(self, device, port, index):
        """The suite asks /sys/class/infiniband for the interface, and it for the address; the GID has it too."""
        with Context(name=device) as context:
            groups = context.query_gid(port, index).gid
        address = ipaddress.IPv6Address(groups)
        self.args.append([device, port, index, str(address.ipv4_mapped or address), '02:00:00:00:00:00'])

    tests.base.RDMATestCase._get_ip_mac = address_and_mac
    out = os.open(results, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
    result = Result(out, seed, int(limit))
    loaded = unittest.defaultTestLoader.loadTestsFromName(f'tests.test_{module}')

    def each(group):
        for member in group:
            if isinstance(member, unittest.TestSuite):
                yield from each(member)
            else:
                yield member

    unittest.TestSuite(case for case in each(loaded) if case.id() not in without).run(result)


main()
