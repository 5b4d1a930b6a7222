"""Endpoints over a socket pair, and receivers without a device."""

import asyncio
import errno
import os
import socket
import threading

import busbar
import numpy
import pytest


def pair():
    """An endpoint and its remote: messages that keep their borders."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return busbar.Endpoint.from_fd(near.detach()), far


def test_messages_go_and_come():
    endpoint, far = pair()
    with endpoint, far:
        for message in (b"hello", bytearray(b"there"), numpy.arange(3, dtype="u1")):
            assert endpoint.send(message)
            assert far.recv(100) == bytes(message)
        assert endpoint.try_recv() is None and endpoint.recv(0.01) is None
        far.send(b"back")
        assert endpoint.recv() == b"back"
        far.send(bytes(600))
        with pytest.raises(OSError) as raised:
            endpoint.recv()
        assert raised.value.errno == errno.EMSGSIZE and raised.value.reason == "too_long"
        far.send(bytes(600))
        assert endpoint.recv(max_len=600) == bytes(600)
    assert endpoint.closed
    with pytest.raises(ValueError, match="the endpoint is closed"):
        endpoint.send(b"")


async def test_messages_in_an_event_loop():
    endpoint, far = pair()
    with endpoint, far:
        waiting = asyncio.create_task(endpoint.recv_async())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        far.send(b"now")
        assert await asyncio.wait_for(waiting, 30) == b"now"
        far.send(bytes(600))
        with pytest.raises(OSError) as raised:
            await asyncio.wait_for(endpoint.recv_async(), 30)
        assert raised.value.reason == "too_long"
        far.send(bytes(600))
        assert await asyncio.wait_for(endpoint.recv_async(max_len=600), 30) == bytes(600)
        # Until there is no room, and then again once there is.
        sent = 0
        while endpoint.try_send(bytes(400)):
            sent += 1
        sending = asyncio.create_task(endpoint.send_async(b"last"))
        await asyncio.sleep(0.02)
        assert not sending.done()
        for _ in range(sent):
            far.recv(500)
        await asyncio.wait_for(sending, 30)
        assert far.recv(500) == b"last"


def test_a_descriptor_belongs_to_one_object(descriptors):
    before = descriptors()
    endpoint, far = pair()
    endpoint.close()
    far.close()
    assert descriptors() == before
    with pytest.raises(OSError) as raised:
        busbar.Endpoint.from_fd(99999)
    assert raised.value.errno == errno.EBADF


def test_a_controller_that_is_not_there_comes_with_advice():
    with pytest.raises(FileNotFoundError, match="start the coprocessor"):
        busbar.Controller("/dev/rpmsg_ctrl_none")
    with pytest.raises(ValueError, match="^path: .* is not allowed; allowed: an rpmsg control device"):
        busbar.Controller("/etc/passwd")
    assert isinstance(busbar.Controller.list(), list)


def test_views_of_what_came_by_tcp(descriptors):
    before = descriptors()
    data = os.urandom(3_000_000)
    with busbar.Receiver(len="1M") as receiver, receiver.listen("127.0.0.1") as listener:
        with socket.create_connection(listener.address) as sender, listener.accept(30) as connection:

            def send():
                sender.sendall(data)
                sender.shutdown(socket.SHUT_WR)

            sending = threading.Thread(target=send)
            sending.start()
            received, views = bytearray(), 0
            for piece in connection:
                views += isinstance(piece, busbar.View)
                received += piece.data if isinstance(piece, busbar.View) else piece
            sending.join()
            assert received == data and views > 0 and connection.finished
        statistics = receiver.statistics()
        del piece
        assert statistics.bytes == len(data) and statistics.memory == 1 << 20
        assert receiver.statistics().views == 0
        assert listener.accept(0) is None
    assert descriptors() == before


def test_a_connection_sends_by_its_socket(descriptors):
    before = descriptors()
    with busbar.Receiver() as receiver, socket.create_server(("127.0.0.1", 0)) as server:
        with receiver.connect(*server.getsockname()) as connection:
            peer, _ = server.accept()
            with peer, connection.socket() as own:
                assert own.getsockname() == peer.getpeername() and own.type == socket.SOCK_STREAM
                assert own.fileno() != connection.fileno() and own.gettimeout() == 0
                own.sendall(b"question")
                assert peer.recv(100) == b"question"
                peer.sendall(b"answer")
                assert bytes(numpy.asarray(connection.next(30))) == b"answer"
        with pytest.raises(ValueError, match="the connection is closed"):
            connection.socket()
    del connection
    assert descriptors() == before


def test_nobody_waits_for_a_thread_that_takes_the_next_piece():
    with busbar.Receiver() as receiver, receiver.listen("127.0.0.1") as listener:
        with socket.create_connection(listener.address) as sender, listener.accept(30) as connection:
            taken = []
            thread = threading.Thread(target=lambda: taken.append(connection.next(30)))
            thread.start()
            for _ in range(100):
                assert connection.try_next() is None and not connection.finished
                assert connection.fileno() > 0
            sender.sendall(b"x")
            thread.join()
            assert bytes(numpy.asarray(taken.pop())) == b"x"


async def test_a_task_misses_nothing_that_a_thread_has_left():
    with busbar.Receiver() as receiver, receiver.listen("127.0.0.1") as listener:
        for _ in range(20):
            with socket.create_connection(listener.address) as sender:
                sender.sendall(bytes(60_000))
            with listener.accept(30) as connection:
                taken = []
                thread = threading.Thread(target=lambda: taken.append(connection.next(1)))
                thread.start()
                async with asyncio.timeout(30):
                    taken += [piece async for piece in connection]
                thread.join()
                assert sum(len(it) for it in taken if it is not None) == 60_000 and connection.finished
                taken.clear()


async def test_pieces_in_an_event_loop():
    with busbar.Receiver() as receiver, receiver.listen("127.0.0.1") as listener:
        _, writer = await asyncio.open_connection(*listener.address)
        with listener.accept(30) as connection:
            writer.write(b"hello")
            writer.write_eof()
            text = b""
            async for piece in connection:
                text += bytes(numpy.asarray(piece))
                if isinstance(piece, busbar.View):
                    assert not numpy.asarray(piece).flags.writeable
                    view = piece.data
                    with pytest.raises(BufferError):
                        piece.release()
                    del view
                    piece.release()
            assert text == b"hello"
        writer.close()


def test_each_address_of_a_host_is_tried():
    addresses = {it[4][0]: it[0] for it in socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)}
    with busbar.Receiver() as receiver:
        for address, family in addresses.items():
            try:
                server = socket.create_server((address, 0), family=family)
            except OSError:
                # A machine without IPv6 may name it all the same.
                continue
            with server, receiver.connect("localhost", server.getsockname()[1]):
                assert server.accept()
        with receiver.listen("localhost") as listener:
            assert listener.address[0] in addresses


def test_connecting_fails_as_the_system_says():
    with busbar.Receiver() as receiver:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with receiver.connect(*address) as connection:
                peer, _ = server.accept()
                peer.close()
                assert list(connection) == []
        with pytest.raises(ConnectionRefusedError):
            receiver.connect(*address)
        with pytest.raises(FileNotFoundError, match="cannot find the address of no-such-host.invalid") as raised:
            receiver.connect("no-such-host.invalid", 1)
        assert raised.value.reason == "not_found"
    with pytest.raises(OSError):
        busbar.Receiver("there-is-no-such-nic")
