"""A device plugin of Python's gRPC: two devices, each healthy unless the control file names it.

usage: plugin.py DIRECTORY RESOURCE CONTROL

DIRECTORY is that of the registration socket. It serves and registers anew whenever that socket is
another one, and tells each registration by a line.
"""

import os
import sys
import threading
import time
from concurrent import futures

import grpc

import device_plugin_pb2 as api
import device_plugin_pb2_grpc as rpc

DEVICES = ("py-0", "py-1")
TICK = 0.05


class Plugin(rpc.DevicePluginServicer):
    def __init__(self, control):
        self.control = control
        self.stop = threading.Event()

    def devices(self):
        with open(self.control) as control:
            broken = control.read().split()
        return [
            api.Device(ID=it, health="Unhealthy" if it in broken else "Healthy")
            for it in DEVICES
        ]

    def GetDevicePluginOptions(self, request, context):
        return api.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        told = None
        while context.is_active() and not self.stop.is_set():
            devices = self.devices()
            if devices != told:
                told = devices
                yield api.ListAndWatchResponse(devices=devices)
            time.sleep(TICK)

    def Allocate(self, request, context):
        answer = api.AllocateResponse()
        for container in request.container_requests:
            given = answer.container_responses.add()
            given.envs["PYTHON_DEVICES"] = ",".join(sorted(container.devices_ids))
            given.annotations["example.com/by"] = "python"
        return answer


def identity(path):
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def main():
    directory, resource, control = sys.argv[1:]
    registry = os.path.join(directory, "kubelet.sock")
    endpoint = "python.sock"
    known = None
    server = None
    while True:
        now = identity(registry)
        if now is not None and now != known:
            if server is not None:
                plugin.stop.set()
                server.stop(0).wait()
            plugin = Plugin(control)
            server = grpc.server(futures.ThreadPoolExecutor(4))
            rpc.add_DevicePluginServicer_to_server(plugin, server)
            server.add_insecure_port("unix://" + os.path.join(directory, endpoint))
            server.start()
            request = api.RegisterRequest(
                version="v1beta1", endpoint=endpoint, resource_name=resource
            )
            try:
                with grpc.insecure_channel("unix://" + registry) as channel:
                    rpc.RegistrationStub(channel).Register(request, timeout=10)
            except grpc.RpcError as error:
                print("refused:", error, file=sys.stderr, flush=True)
            else:
                known = now
                print("registered", flush=True)
        time.sleep(TICK)


main()
