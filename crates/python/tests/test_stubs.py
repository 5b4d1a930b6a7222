"""The stubs have what the module has, and both say what it does."""

import ast
import dataclasses
import inspect
import socket
import types
from pathlib import Path

import busbar
import pytest
from busbar import _busbar

STUBS = ast.parse(Path(_busbar.__file__).with_name("_busbar.pyi").read_text())
CLASSES = {it.name: it for it in STUBS.body if isinstance(it, ast.ClassDef) and it.name[0] != "_" and it.name != "Firmware"}


def methods(stub):
    return {it.name: it for it in stub.body if isinstance(it, ast.FunctionDef)}


def decorators(method):
    return {it.id for it in method.decorator_list if isinstance(it, ast.Name)}


def said(method):
    """The parameters of a stub: name, kind, default."""
    arguments = method.args
    assert not arguments.posonlyargs and not arguments.vararg and not arguments.kwarg, method.name
    plain = arguments.args[0 if "staticmethod" in decorators(method) else 1 :]
    defaults = [inspect.Parameter.empty] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    pairs = [(it, inspect.Parameter.POSITIONAL_OR_KEYWORD, default) for it, default in zip(plain, defaults, strict=True)]
    pairs += [
        (it, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty if default is None else default)
        for it, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [
        (it.arg, kind, default if default is inspect.Parameter.empty else ast.literal_eval(default))
        for it, kind, default in pairs
    ]


def found(callable):
    """The same of what the module has."""
    parameters = inspect.signature(callable).parameters.values()
    return [(it.name, it.kind, it.default) for it in parameters if it.name != "self"]


def test_the_stubs_have_every_class_and_method():
    assert set(CLASSES) == {name for name in vars(_busbar) if name[0].isupper()}
    # What every class has, or only the interpreter calls.
    usual = set(vars(object)) | {"__module__", "__weakref__"}
    for name, stub in CLASSES.items():
        found = {it for it in vars(getattr(_busbar, name)) if not it.startswith("_") or it.endswith("__")}
        assert set(methods(stub)) - usual == found - usual, name
    assert set(busbar.__all__) >= set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_the_stubs_have_the_kind_and_the_parameters_of_each_method(name):
    own = getattr(_busbar, name)
    for method in methods(CLASSES[name]).values():
        if method.name == "__new__":
            assert found(own) == said(method), name
        elif not method.name.startswith("_"):
            is_property = inspect.isgetsetdescriptor(vars(own)[method.name])
            assert is_property == ("property" in decorators(method)), (name, method.name)
            if not is_property:
                is_bound = isinstance(vars(own)[method.name], types.ClassMethodDescriptorType)
                assert is_bound == ("classmethod" in decorators(method)), (name, method.name)
                assert found(getattr(own, method.name)) == said(method), (name, method.name)


def test_what_has_no_constructor_in_the_stubs_cannot_be_made():
    for name, stub in CLASSES.items():
        if "__new__" not in methods(stub):
            with pytest.raises(TypeError, match="cannot create|No constructor"):
                getattr(_busbar, name)()


def public(own):
    """What a program uses of a class, by name: what is inherited, or is a slot, has a text of Python's."""
    slots = types.WrapperDescriptorType, types.BuiltinFunctionType
    return {
        name: it
        for name, it in vars(own).items()
        if (callable(it) or inspect.isgetsetdescriptor(it) or isinstance(it, types.ClassMethodDescriptorType))
        and not isinstance(it, slots)
        and (not name.startswith("_") or name.endswith("__"))
    }


def words(text):
    return " ".join((text or "").split())


def test_everything_public_has_a_docstring():
    assert words(busbar.__doc__)
    for name in busbar.__all__:
        own = getattr(busbar, name)
        # Of a class, not what it inherits.
        assert words(vars(own)["__doc__"] if isinstance(own, type) else own.__doc__), name
        if dataclasses.is_dataclass(own):
            fields = [field.name for field in dataclasses.fields(own)]
            told = [line.split(":")[0] for line in inspect.getdoc(own).splitlines()[2:]]
            assert told == fields, name


@pytest.mark.parametrize("name", CLASSES)
def test_the_docstrings_say_errors_and_are_those_of_the_stubs(name):
    own, stub = getattr(_busbar, name), CLASSES[name]
    assert words(own.__doc__) == words(ast.get_docstring(stub))
    for method, it in public(own).items():
        text = words(it.__doc__)
        assert text, (name, method)
        assert text == words(ast.get_docstring(methods(stub)[method])), (name, method)
        # A property without errors has none.
        assert "Errors: " in text or inspect.isgetsetdescriptor(it), (name, method)


def closed():
    """An object of each class that needs no device, after its end."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    endpoint = busbar.Endpoint.from_fd(near.detach())
    source = busbar.Source("synth:counter")
    block = source.next()
    pipeline = busbar.Pipeline('source.adc = { from = "synth:counter" }\nsink.no = { input = "adc", to = "null:" }')
    receiver = busbar.Receiver()
    listener = receiver.listen("127.0.0.1")
    peer = socket.create_connection(listener.address)
    connection = listener.accept(30)
    peer.send(b"x")
    view = connection.next(30)
    controller = busbar.Controller("/dev/null")
    for it in (far, peer, endpoint, source, pipeline, listener, connection, receiver, controller):
        it.close()
    for it in (block, view):
        it.release()
    return [endpoint, source, block, pipeline, receiver, listener, connection, view, controller]


def test_what_the_docstring_of_a_property_says_of_errors_is_so():
    for it in closed():
        for name, own in public(type(it)).items():
            if inspect.isgetsetdescriptor(own):
                try:
                    getattr(it, name)
                    raises = False
                except ValueError:
                    raises = True
                assert raises == ("Errors: " in words(own.__doc__)), (it, name)
