"""Command line and config file of horovodrun: conversion into settings, help texts, and advice after mistakes."""
