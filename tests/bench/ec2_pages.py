"""DescribeInstances over HTTP for any number of instances, in a process of its own so that only the client is measured.

Each entry has all the fields that EC2 sends for an ordinary instance (EC2 API reference, DescribeInstances): 3.4 KB.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs

from tests.bench import fleet

PAGE = 1000
_RUNNING = b"<code>16</code><name>running</name>"
_TERMINATED = b"<code>48</code><name>terminated</name>"
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_INTERFACE = """\
<item><networkInterfaceId>eni-{i:017x}</networkInterfaceId><subnetId>subnet-56f5f633</subnetId>\
<vpcId>vpc-11112222</vpcId><description/><ownerId>123456789012</ownerId><status>in-use</status>\
<macAddress>02:dd:2c:5e:01:69</macAddress><privateIpAddress>10.0.0.1</privateIpAddress>\
<privateDnsName>ip-10-0-0-1.ec2.internal</privateDnsName><sourceDestCheck>true</sourceDestCheck><groupSet><item>\
<groupId>sg-e4076980</groupId><groupName>default</groupName></item></groupSet><attachment>\
<attachmentId>eni-attach-39697adc</attachmentId><deviceIndex>0</deviceIndex><status>attached</status>\
<attachTime>2026-01-01T00:00:00.000Z</attachTime><deleteOnTermination>true</deleteOnTermination>\
<networkCardIndex>0</networkCardIndex></attachment><association><publicIp>192.0.2.1</publicIp><publicDnsName/>\
<ipOwnerId>amazon</ipOwnerId></association><privateIpAddressesSet><item><privateIpAddress>10.0.0.1</privateIpAddress>\
<privateDnsName>ip-10-0-0-1.ec2.internal</privateDnsName><primary>true</primary><association>\
<publicIp>192.0.2.1</publicIp><publicDnsName/><ipOwnerId>amazon</ipOwnerId></association></item>\
</privateIpAddressesSet><ipv6AddressesSet/><interfaceType>interface</interfaceType></item>"""
_INSTANCE = """\
<item><reservationId>r-{i:017x}</reservationId><ownerId>123456789012</ownerId><groupSet/><instancesSet><item>\
<instanceId>i-{i:017x}</instanceId><imageId>ami-0123456789abcdef0</imageId><instanceState><code>16</code>\
<name>running</name></instanceState><privateDnsName>ip-10-0-0-1.ec2.internal</privateDnsName><dnsName/><reason/>\
<amiLaunchIndex>0</amiLaunchIndex><productCodes/><instanceType>p5.48xlarge</instanceType>\
<launchTime>2026-01-01T00:00:00.000Z</launchTime><placement><availabilityZone>us-east-1a</availabilityZone><groupName/>\
<tenancy>default</tenancy></placement><monitoring><state>disabled</state></monitoring>\
<subnetId>subnet-56f5f633</subnetId><vpcId>vpc-11112222</vpcId><privateIpAddress>10.0.0.1</privateIpAddress>\
<ipAddress>192.0.2.1</ipAddress><sourceDestCheck>true</sourceDestCheck><groupSet><item><groupId>sg-e4076980</groupId>\
<groupName>default</groupName></item></groupSet><architecture>x86_64</architecture><rootDeviceType>ebs</rootDeviceType>\
<rootDeviceName>/dev/sda1</rootDeviceName><blockDeviceMapping><item><deviceName>/dev/sda1</deviceName><ebs>\
<volumeId>vol-{i:017x}</volumeId><status>attached</status><attachTime>2026-01-01T00:00:00.000Z</attachTime>\
<deleteOnTermination>true</deleteOnTermination></ebs></item></blockDeviceMapping>\
<virtualizationType>hvm</virtualizationType><clientToken>{name}</clientToken><tagSet><item><key>Name</key>\
<value>{name}</value></item><item><key>meshd-machine</key><value>{name}</value></item><item><key>meshd-cluster</key>\
<value>lab</value></item><item><key>meshd-slot</key><value>h100-{i}</value></item></tagSet><hypervisor>xen</hypervisor>\
<networkInterfaceSet>{interface}</networkInterfaceSet><ebsOptimized>false</ebsOptimized><enaSupport>true</enaSupport>\
<cpuOptions><coreCount>96</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions>\
<capacityReservationSpecification><capacityReservationPreference>open</capacityReservationPreference>\
</capacityReservationSpecification><hibernationOptions><configured>false</configured></hibernationOptions>\
<metadataOptions><state>applied</state><httpTokens>required</httpTokens>\
<httpPutResponseHopLimit>1</httpPutResponseHopLimit><httpEndpoint>enabled</httpEndpoint></metadataOptions>\
<enclaveOptions><enabled>false</enabled></enclaveOptions><bootMode>uefi</bootMode>\
<platformDetails>Linux/UNIX</platformDetails></item></instancesSet></item>"""


def page(first: int, last: int, token: str) -> bytes:
    """The answer with instances `first` to `last`, and the token of the next page ("" for none)."""
    items = "".join(
        _INSTANCE.format(i=i, name=fleet.name(i), interface=_INTERFACE.format(i=i)) for i in range(first, last + 1)
    )
    more = f"<nextToken>{token}</nextToken>" if token else ""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<DescribeInstancesResponse xmlns="{_NAMESPACE}">'
        f"<requestId>8f7724cf-496f-496e-8fe3-0123456789ab</requestId><reservationSet>{items}</reservationSet>{more}"
        "</DescribeInstancesResponse>"
    ).encode()


def _serve(count: int, pipe: Connection) -> None:
    starts = range(1, count + 1, PAGE)
    pages = {
        first: page(first, min(first + PAGE - 1, count), str(first + PAGE) if first + PAGE <= count else "")
        for first in starts
    }
    ended = f'<TerminateInstancesResponse xmlns="{_NAMESPACE}"><instancesSet/></TerminateInstancesResponse>'.encode()
    others = {"TerminateInstances": ended}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """`/end/INDEX`: that instance is terminated from now on."""
            index = int(self.path.rpartition("/")[2])
            first = (index - 1) // PAGE * PAGE + 1
            before, here, after = pages[first].partition(f"<instanceId>i-{index:017x}".encode())
            pages[first] = before + here + after.replace(_RUNNING, _TERMINATED, 1)
            self.send_response(204)
            self.end_headers()

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            action = form.get("Action", [""])[0]
            page_from = int(form.get("NextToken", ["1"])[0])
            body = pages[page_from] if action == "DescribeInstances" else others[action]
            self.send_response(200)
            self.send_header("Content-Type", "text/xml;charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_port)
    server.serve_forever()


@contextmanager
def serving(count: int) -> Iterator[str]:
    """The endpoint's address, while it answers."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(count, there), daemon=True)
    process.start()
    there.close()  # else `recv` would wait for ever for a process that has died
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()
